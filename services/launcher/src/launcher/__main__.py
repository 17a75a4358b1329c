"""``python -m launcher``."""

from muster.program import loading

with loading():
    from launcher.app import main

if __name__ == "__main__":
    main()
