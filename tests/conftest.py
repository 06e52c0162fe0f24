"""What all tests share."""

import pytest

# So that its assertions explain themselves as those of test files do.
pytest.register_assert_rewrite("headgate.testing.conformance", "headgate.testing.bucket_conformance")
