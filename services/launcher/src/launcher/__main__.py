"""``python -m launcher``."""

from launcher.app import main

if __name__ == "__main__":
    main()
