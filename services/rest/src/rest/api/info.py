"""What this is, how to log in, and the schema of job files."""

from importlib.metadata import version
from typing import Any

from muster.protocol import job_file_schema

from rest.api.router import new_router

router = new_router(tag="info")

LOGIN_PATH = "/api/v2/authn/basic/login"
_SCHEMA = job_file_schema()


@router.get("/info")
async def get_info() -> dict[str, str]:
    """The cluster's name and version."""
    return {
        "name": "Muster",
        "version": version("muster-rest"),
        "launcherType": "muster",
        "authnMethod": "basic",
    }


@router.get("/authn/info")
async def get_login_info() -> dict[str, str]:
    """How to log in."""
    return {"authn_type": "basic", "loginURI": LOGIN_PATH, "loginURIMethod": "post"}


@router.get("/protocol/schema.json", tags=["jobs"])
async def get_job_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors."""
    return _SCHEMA
