"""``python -m scheduler`` and the command ``muster-scheduler``."""

from scheduler.app import main

if __name__ == "__main__":
    main()
