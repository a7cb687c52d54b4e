"""What a fresh machine is given of this one's settings."""

from lab.testrun import fresh


def test_certificates_of_a_bundle_come_apart():
    one = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    two = one.replace("AAAA", "BBBB")
    assert fresh.split_certificates(f"# name\n{one}\n# other\n{two}") == [one, two]
    assert fresh.split_certificates("") == []


def test_local_indexes_bring_the_files_beside_them(tmp_path):
    wheels, index = tmp_path / "wheels", tmp_path / "index" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    listing = (
        f"global.find-links='{wheels}'\n"
        f"global.extra-index-url='file://{index} https://index.example/simple'\n"
        f"global.index-url='{tmp_path}/absent'\n"
        f"global.cert='{tmp_path}'\n"
    )
    assert fresh.local_sources(listing) == [tmp_path / "index", wheels]
