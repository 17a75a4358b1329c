"""``python -m alerting`` and the command ``muster-alerting``."""

from muster.program import loading

with loading():
    from alerting.app import main

if __name__ == "__main__":
    main()
