"""What all tests share."""

import pytest

# So that their assertions explain themselves as those of test files do.
pytest.register_assert_rewrite("headgate.testing.conformance", "headgate.testing.bucket_conformance")

pytest_plugins = ["tests.postgres_server", "tests.redis_server"]
