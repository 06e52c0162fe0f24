"""A Django project whose tasks run on Headgate; where its database and its jobs are is in the environment."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from headgate.contrib.django import standard

SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = [
    "headgate.contrib.django",
    "tests.faces.contrib.shop",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
]
if standard.NAME == "django_tasks":
    INSTALLED_APPS.append("django_tasks")


def _database(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path[1:]}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


DATABASES = {
    "default": _database(os.environ["SHOP_DATABASE"]),
    "elsewhere": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SHOP_ELSEWHERE"]},
}

_BACKEND = "headgate.contrib.django.HeadgateBackend"
TASKS = {
    "default": {
        "BACKEND": _BACKEND,
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"app": "tests.faces.contrib.shop.jobs:app"},
    },
    "beside": {
        "BACKEND": _BACKEND,
        "QUEUES": [],
        "OPTIONS": {"app": "tests.faces.contrib.shop.jobs:app", "database": "elsewhere"},
    },
}

ROOT_URLCONF = "tests.faces.contrib.shop.urls"
ALLOWED_HOSTS = ["testserver"]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
# Tables without the history of their migrations, which would take a second.
MIGRATION_MODULES = {"admin": None, "auth": None, "contenttypes": None}
