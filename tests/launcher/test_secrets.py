"""The secrets of a job reach each pod sealed to its agent, or the pod is not requested."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from launcher.domain.model import Policy, Receiver
from launcher.domain.states import JobPhase
from launcher.secrets import resealing
from launcher.settings import LauncherSettings
from muster.contracts.jobs import JobRequest
from muster.contracts.secrets import JobSecrets, PodSecrets, PullCredentials, Secrets
from muster.protocol.sizes import having_secrets, largest_record, size
from muster.sealing import make_private_key, public_key_of, seal, unseal
from pydantic import SecretStr, ValidationError

MakeRequest = Callable[..., JobRequest]
StoryOf = Callable[..., Any]

LAUNCHER, AGENT, OTHER = make_private_key(), make_private_key(), make_private_key()
PULL = PullCredentials(username="me", password="marker-pull", registry="r.example")
SECRETS = JobSecrets(job="j1", values={"$secrets.a": "marker-a"}, pulls={"worker": PULL})


def sealed(secrets: JobSecrets = SECRETS, to: str = LAUNCHER) -> str:
    return seal(secrets.model_dump_json(), public_key_of(to))


@pytest.fixture
def story(make_request: MakeRequest, story_of: StoryOf) -> Callable[..., Any]:
    """A job with secrets, whose Launcher has these keys."""

    def begin(*keys: str, gang: bool = True, roles: dict[str, int] | None = None) -> Any:
        request = make_request("j1", roles or {"worker": 2}, gang=gang, secrets=sealed())
        begun = story_of(request, Policy(reseal=resealing(keys)))
        begun.scheduler.secrets_keys = {"n1": public_key_of(AGENT)}
        return begun

    return begin


def opened(run: str | None) -> PodSecrets:
    return PodSecrets.model_validate_json(unseal(run or "", [AGENT]))


def test_each_pod_gets_the_secrets_sealed_to_its_agent(story: Any) -> None:
    runs = story(LAUNCHER, roles={"ps": 1, "worker": 1}).place().runs()
    ps, worker = (opened(each.run.secrets) for each in runs)
    assert (ps.pod, ps.pull) == ("j1-0-ps-0-0", None)
    assert worker == PodSecrets(pod="j1-0-worker-0-0", values=SECRETS.values, pull=PULL)
    assert "marker" not in "".join(each.model_dump_json() for each in runs)


def test_the_same_pod_and_key_give_the_same_text_and_others_do_not() -> None:
    reseal = resealing([LAUNCHER])

    def sealed_to(pod: str, key: str) -> Sequence[str] | None:
        return reseal("j1", sealed(), [Receiver(pod, "worker", public_key_of(key))])

    assert sealed_to("p1", AGENT) == sealed_to("p1", AGENT)
    assert sealed_to("p1", AGENT) != sealed_to("p2", AGENT)
    assert sealed_to("p1", AGENT) != sealed_to("p1", OTHER)


def test_an_older_key_still_opens(story: Any) -> None:
    runs = story(OTHER, LAUNCHER).place().runs()
    assert [opened(each.run.secrets).values for each in runs] == [SECRETS.values] * 2


def test_a_job_without_secrets_asks_for_no_keys(new_story: Callable[..., Any]) -> None:
    story = new_story({"worker": 1})
    story.scheduler.secrets_keys = {"n1": public_key_of(AGENT)}
    (run,) = story.place().runs()
    assert not story.scheduler.gangs["j1-0"].needs_keys
    assert run.run.secrets is None


def test_without_its_key_a_job_waits_for_the_next_attempt(story: Any) -> None:
    begun = story(OTHER).place()
    assert begun.runs() == []
    assert begun.phase() is JobPhase.BACKOFF
    assert begun.status().reason.text.endswith(
        "An operator must put the key back into MUSTER_SECRETS_KEYS, or the job must be submitted"
        " again."
    )
    begun.policy = Policy(reseal=resealing([LAUNCHER]))
    assert len(begun.wait(2).place().runs()) == 2


def test_a_pod_on_a_node_whose_agent_has_no_key_is_retried(story: Any) -> None:
    begun = story(LAUNCHER, gang=False)
    first, second = sorted(begun.scheduler.gangs)
    begun.receive(begun.scheduler.place(first, "n2"))
    begun.receive(begun.scheduler.place(second, "n1"))
    assert [each.pod for each in begun.runs()] == [second]
    assert begun.job.tasks["worker", 0].verdict.rule == "agent-without-key"
    assert begun.wait(2).place().runs()[-1].pod == "j1-0-worker-0-1"


@pytest.mark.parametrize(
    "text",
    [
        sealed(SECRETS.model_copy(update={"job": "j2"})),
        seal("{}", public_key_of(LAUNCHER)),
        "no sealed text",
    ],
    ids=["of another job", "of another form", "no text"],
)
def test_what_is_not_the_jobs_own_opens_nothing(text: str) -> None:
    receiver = Receiver("j1-0-worker-0-0", "worker", public_key_of(AGENT))
    assert resealing([LAUNCHER])("j1", text, [receiver]) is None


def test_a_wrong_key_is_named_at_the_start_and_never_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        LauncherSettings(secrets_keys=SecretStr(f"{LAUNCHER}, marker-wrong"))
    assert "make_secrets_key" in str(caught.value)
    assert "marker-wrong" not in str(caught.value)


def test_the_size_of_records_counts_sealed_secrets(
    make_request: MakeRequest, story_of: StoryOf
) -> None:
    secrets = SECRETS.model_copy(update={"values": {"$secrets.a": '"\\' * 50_000}})
    request = make_request("j1", {"worker": 2}, secrets=sealed(secrets))
    story = story_of(request, Policy(reseal=resealing([LAUNCHER])))
    story.scheduler.secrets_keys = {"n1": public_key_of(AGENT)}
    run, _ = story.place().runs()
    assert request.spec is not None
    plain = request.spec.model_copy(update={"secrets": None})
    bound = largest_record(having_secrets(plain, Secrets(**dict(secrets))))[1]
    largest = max(size(run), size(request))
    assert largest <= bound <= largest + 20_000
