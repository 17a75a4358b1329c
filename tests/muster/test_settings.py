"""A name of a setting means one thing, whichever service reads it: an environment may serve all."""

from itertools import combinations

from alerting.settings import AlertingSettings
from launcher.settings import LauncherSettings
from muster.settings import DatabaseSettings, ServiceSettings
from rest.settings import RestSettings
from runtime_agent.settings import AgentSettings
from scheduler.settings import SchedulerSettings

MEANT_FOR_BOTH = {
    "http_port",  # its own port, of the service that reads it
    "webhook_key",  # the same key
    "service_key",  # its own key, of the service that reads it
    "resolver_threads",  # the same bound
    "foreign_port_s",  # the same time
    "metrics_users",  # the same bound
    "kube_namespace",  # the same namespaces, of the tasks
    "kube_host_namespace",
    "kube_host_network",  # the same permission: REST refuses what agents would
}
SERVICES: list[type[ServiceSettings]] = [
    RestSettings,
    LauncherSettings,
    SchedulerSettings,
    AlertingSettings,
    AgentSettings,
]


def test_no_two_services_give_one_name_two_meanings() -> None:
    for one, other in combinations(SERVICES, 2):
        both = set(one.model_fields) & set(other.model_fields)
        own = both - set(DatabaseSettings.model_fields) - MEANT_FOR_BOTH
        assert own == set(), (one, other)
