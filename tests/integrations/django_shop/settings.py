"""Settings: the cluster from the environment, a database in memory."""

import os

INSTALLED_APPS = ["saturnmq.django", "saturnmq.django.outbox", "django_shop"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "later": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("TEST_DATABASE", ":memory:")},
}
SATURNMQ = {"url": os.environ.get("TEST_SATURNMQ_URL"), "timeout": 10.0}
USE_TZ = True
SECRET_KEY = "of the tests"

# The process of the tests keeps its time zone and its logging.
TIME_ZONE = None
USE_TZ = False
LOGGING_CONFIG = None
