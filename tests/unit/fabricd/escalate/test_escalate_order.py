"""What comes first when a host becomes silent."""

from dataclasses import replace

from whole_host import WholeHost


async def test_the_steer_page_is_written_before_anybody_is_told_who_is_silent(
    tmp_path, monkeypatch
):
    whole = WholeHost(tmp_path)
    host, done = whole.host, []
    evaluate = host.engine.evaluate

    def silent(*arguments, **options):
        outcome = evaluate(*arguments, **options)
        host.engine.silent_hosts = frozenset({"h1"})
        return replace(outcome, silent_hosts=host.engine.silent_hosts)

    monkeypatch.setattr(host.engine, "evaluate", silent)
    host.evaluator.on_silence(lambda: done.append(("told", whole.weights()["rail1"])))
    host.events.recorder.put = lambda _: done.append("recorded")
    try:
        whole.link("rail1").carrier = False
        host.evaluator.step()
        assert done[:2] == [("told", 0), "recorded"], "the page says it already"
    finally:
        whole.close()
