"""`python -m runtime_agent`."""

from runtime_agent.app import main

if __name__ == "__main__":
    main()
