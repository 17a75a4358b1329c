"""What a client of plain HTTP takes as its TLS: reading the system's authorities, which it needs
not, takes longer than most requests.
"""

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""It trusts nobody."""
