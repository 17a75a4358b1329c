"""A file of rules that take a node, repair it, and release it after a preflight job."""


def repairing(actions: str, *, alert: str, command: str) -> str:
    """These actions, and `back`: it releases a node after ``alert`` if ``command`` succeeds."""
    return f"""actions:
{actions.strip()}
- name: back
  alerts: [{alert}]
  do: release
  mode: "on"
  job:
    protocolVersion: 2
    name: any
    type: job
    prerequisites: [{{type: dockerimage, name: image, uri: none}}]
    taskRoles:
      test:
        instances: 1
        dockerImage: image
        resourcePerInstance: {{cpu: 1, memoryMB: 64}}
        commands: ["{command}"]
limits: {{nodesPerHour: 5, nodesShare: 1}}
"""
