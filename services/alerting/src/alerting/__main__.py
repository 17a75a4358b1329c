"""``python -m alerting`` and the command ``muster-alerting``."""

from alerting.app import main

if __name__ == "__main__":
    main()
