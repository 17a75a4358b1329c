"""``python -m scheduler`` and the command ``muster-scheduler``."""

from muster.program import loading

with loading():
    from scheduler.app import main

if __name__ == "__main__":
    main()
