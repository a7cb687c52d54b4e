"""A graceful stop: what is given back stays so while the daemon ends."""

from whole_host import WholeHost


async def test_what_was_given_back_is_not_taken_again(tmp_path):
    whole = WholeHost(tmp_path)
    try:
        whole.link("rail1").carrier = False
        whole.host.evaluator.step()
        assert whole.weights()["rail1"] == 0
        whole.host.publisher.give_back()
        assert set(whole.weights().values()) == {1000}
        whole.host.evaluator.step()  # a timer or reader that was still armed
        assert set(whole.weights().values()) == {1000}
    finally:
        whole.close()
