"""An administrator's connection to brokers that answer as a test prescribes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from saturnmq.admin.connection import AdminConnection
from saturnmq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from saturnmq.protocol.codes import Language, RequestCode, ResponseCode
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import Command

Answer = Callable[[str, Mapping[str, str]], Any]


class ScriptedConnection(AdminConnection):
    """brokers: addresses by broker name, one master each. script: for a request code, a body, an error, or None to hang."""

    def __init__(self, brokers: Mapping[str, str], script: Mapping[int, Answer], topics: Sequence[str] = ()) -> None:
        super().__init__("127.0.0.1:1", timeout_ms=300_000)
        self._data = [BrokerData("C", name, {0: address}) for name, address in brokers.items()]
        self.script = script
        self.topics = list(topics)
        self.asked: list[tuple[str, int]] = []
        self.languages: list[Language] = []

    async def read(
        self,
        address: str,
        code: RequestCode,
        header: Any = None,
        body: bytes | None = None,
        *,
        timeout_ms: int | None = None,
        accept: Sequence[ResponseCode] = (ResponseCode.SUCCESS,),
        main_port: bool = False,
        language: Language = Language.PYTHON,
    ) -> Command:
        self.asked.append((address, int(code)))
        self.languages.append(language)
        ext = {} if header is None else header.to_ext()
        found = self.script[code](address, ext)
        if found is None:
            await asyncio.Event().wait()
        if isinstance(found, Exception):
            raise found
        return Command(ResponseCode.SUCCESS, body=found.encode())

    async def route(self, topic: str) -> TopicRouteData:
        if topic.endswith("unknown"):
            raise response_error(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        queues = [QueueData(one.broker_name, 1, 1, 6, 0) for one in self._data]
        return TopicRouteData(queue_datas=queues, broker_datas=self._data)

    async def cluster(self) -> ClusterInfo:
        table = {one.broker_name: one for one in self._data}
        return ClusterInfo(broker_addr_table=table, cluster_addr_table={"C": list(table)})

    async def ask_name_server(self, code: RequestCode, header: Any = None, *, accept: Any = ()) -> Command:
        assert code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        return Command(ResponseCode.SUCCESS, body=TopicList(topic_list=self.topics).encode())
