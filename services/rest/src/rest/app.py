"""REST's wiring: settings, tables, handlers, API; the only place where concrete things meet."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from muster.contracts.topics import Service
from muster.service import Runtime, health_routes, run_service
from muster.settings import read

from rest.api.build import build_app
from rest.api.context import Context
from rest.claims import Claims
from rest.cluster import TOPICS as CLUSTER_TOPICS
from rest.cluster import Cluster
from rest.handlers.access import Access, make_admin
from rest.handlers.act import REQUESTED, Actions
from rest.handlers.alert_rules import AlertRules
from rest.handlers.configure import Configuration
from rest.handlers.confirm import EmailConfirmations
from rest.handlers.limit import RequestLimits
from rest.handlers.maintain import maintain
from rest.handlers.passwords import Passwords
from rest.handlers.publish import TOPICS as SETTINGS
from rest.handlers.publish import SettingsPublisher
from rest.handlers.report import Reports
from rest.handlers.submit import Submissions
from rest.handlers.updates import TOPICS, jobs_aggregate
from rest.metrics import RestMetrics
from rest.peers import Peers
from rest.settings import RestSettings
from rest.virtual_clusters import KnownVirtualClusters


@asynccontextmanager
async def build(runtime: Runtime) -> AsyncIterator[None]:
    """Set REST up on a runtime."""
    settings = runtime.settings
    assert isinstance(settings, RestSettings)
    metrics = RestMetrics(runtime.registry)
    made = await make_admin(runtime.pool, settings)
    if made is not None:
        _print_password(made)

    cluster = Cluster()
    cluster_follower = runtime.follow(CLUSTER_TOPICS, cluster.on_record)
    runtime.consume(TOPICS, jobs_aggregate())
    submissions = Submissions(runtime.relay, settings, metrics)
    runtime.spawn("submissions", submissions.run)
    publisher = SettingsPublisher(runtime.pool, runtime.bus, settings, metrics)
    runtime.follow(SETTINGS, publisher.on_record)
    runtime.incarnations.on_restored.append(publisher.resync)
    runtime.spawn("settings", publisher.run)
    runtime.spawn("maintenance", lambda: maintain(runtime.pool, settings))

    actions = Actions(runtime.relay, cluster, publisher, metrics, settings)
    runtime.follow((REQUESTED,), actions.on_record)
    runtime.spawn("actions", actions.run)
    runtime.spawn("repairs", actions.follow_repairs)

    peers = Peers(settings, metrics)
    reports = Reports(runtime.pool, peers, cluster, settings, runtime.bus)
    runtime.spawn("reports", partial(reports.run, cluster_follower.caught_up))
    claims = Claims(settings, metrics)
    virtual_clusters = KnownVirtualClusters(peers, settings)
    if settings.scheduler_urls:
        runtime.spawn("virtual clusters", virtual_clusters.run)
    limits = RequestLimits(settings, metrics)
    passwords = Passwords(runtime.reserved_pool, settings, metrics, limits)
    context = Context(
        pool=runtime.pool,
        relay=runtime.relay,
        bus=runtime.bus,
        settings=settings,
        metrics=metrics,
        access=Access(runtime.reserved_pool, settings, metrics, passwords),
        passwords=passwords,
        confirmations=EmailConfirmations(settings, metrics),
        limits=limits,
        submissions=submissions,
        publisher=publisher,
        cluster=cluster,
        peers=peers,
        claims=claims,
        reports=reports,
        virtual_clusters=virtual_clusters,
        actions=actions,
        alert_rules=AlertRules(runtime.pool, peers, settings, publisher.wake),
        configuration=Configuration(runtime.pool, peers, settings, metrics, publisher.wake),
        stopping=runtime.stopping,
    )
    runtime.asgi = build_app(context, health_routes(runtime))
    try:
        yield
    finally:
        await peers.close()
        await claims.close()


def _print_password(password: str) -> None:
    """Past the logs, so that it is kept nowhere."""
    text = f"Muster has made the user admin. The password, shown only now: {password}\n"
    sys.stderr.write(text)
    sys.stderr.flush()


def main() -> None:
    """Run REST."""
    settings = read(RestSettings)
    run_service(Service.REST, settings, settings.http_port, build)
