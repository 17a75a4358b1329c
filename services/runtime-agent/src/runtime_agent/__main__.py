"""`python -m runtime_agent`."""

from muster.program import loading

with loading():
    from runtime_agent.app import main

if __name__ == "__main__":
    main()
