"""``python -m rest``."""

from rest.app import main

if __name__ == "__main__":
    main()
