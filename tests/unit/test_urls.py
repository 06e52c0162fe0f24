"""URLs as they may be shown."""

import pytest

from headgate.urls import displayed_url, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:hunter2@db.example:5432/shop", "postgresql://ada@db.example:5432/shop"),
        ("postgresql://ada@db/shop?sslpassword=hunter2", "postgresql://ada@db/shop"),
        ("postgresql://ada:hunter2@one:5432,two:5433/shop", "postgresql://ada@one:5432,two:5433/shop"),
        ("postgresql://ada:hunter2@[::1]:5432/shop", "postgresql://ada@[::1]:5432/shop"),
        ("postgresql:///shop?host=/run/postgresql", "postgresql:///shop"),
        ("redis://:hunter2@cache:6379/0", "redis://@cache:6379/0"),
        ("rediss://ada:hunter2@cache#part", "rediss://ada@cache"),
        ("unix:///run/redis.sock?db=1&password=hunter2", "unix:///run/redis.sock"),
        ("valkey://ada:hunter2@cache", "valkey://ada@cache"),
        ("redis+sentinel://ada:hunter2@one:26379,two:26379/main", "redis+sentinel://ada@one:26379,two:26379/main"),
        ("postgresql://ada:hun/ter#2?x@y@db/shop", "postgresql://ada@db/shop"),
        ("redis://cache:hunter2", "redis://cache:***"),
        ("redis://hunter 2", "redis://***"),
        ("postgresql://db/shop?password=hun@ter2", "postgresql://***"),
        ("ada:hunter2@db/shop", "***@db/shop"),
        ("host=db user=ada password=hunter2 dbname=shop", "host=db user=ada password=*** dbname=shop"),
        ("host=db password='hunter 2'", "host=db password=***"),
        ("redis:hunter2", "redis:***"),
        ("jobs.db", "jobs.db"),
        ("sqlite:///data/jobs@home.db", "sqlite:///data/jobs@home.db"),
        ("sqlite://ada:hunter2@host/jobs.db", "sqlite://ada@host/jobs.db"),
        ("sqlite:///jobs.db?password=hunter2", "sqlite:///jobs.db"),
        ("memory://", "memory://"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_what_is_secret_in_it(url: str, shown: str) -> None:
    assert displayed_url(url) == shown


def test_what_a_parser_quotes_of_a_password_is_replaced() -> None:
    url = "redis://:hunter2/swordfish@cache:6379/0"
    text = "Port could not be cast to integer value as 'hunter2'; /swordfish@cache is no number"
    assert without_secrets(text, url) == "Port could not be cast to integer value as '***'; /***@cache is no number"


def test_a_text_that_quotes_nothing_secret_stays_as_it_is() -> None:
    url = "postgresql://ada:hunter2@db:5432/shop"
    assert without_secrets("Connect call failed ('db', 5432)", url) == "Connect call failed ('db', 5432)"


def test_an_error_names_the_host_that_an_option_of_the_url_names() -> None:
    """The fault: it was "Connect call failed ('***', 5432)", and "connection ***s a valid client certificate"."""
    url = (
        "postgresql://ada@/shop?host=10.0.0.1:5432,10.0.0.2&sslmode=require&target_session_attrs=primary&token=hunter2"
    )
    told = (
        "Connect call failed ('10.0.0.2', 5432); connection requires a valid client certificate, and is no primary; ***"
    )
    assert without_secrets(told.replace("***", "hunter2"), url) == told
    misplaced = "postgresql://ada:swordfish?host=hunter2@db/shop"
    assert without_secrets("swordfish, hunter2", misplaced) == "***, ***"
