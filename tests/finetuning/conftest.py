import pytest

from tests.finetuning import small


@pytest.fixture(scope="package")
def bert(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert") / "hf"
    small.write_bert(directory)
    return directory


@pytest.fixture(scope="package")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    small.write_rows(directory)
    return directory
