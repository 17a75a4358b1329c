"""``python -m rest``."""

from muster.program import loading

with loading():
    from rest.app import main

if __name__ == "__main__":
    main()
