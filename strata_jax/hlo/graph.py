# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Who uses whom in one computation, read from the proto once so that the hook stays linear.

XLA reads only the low 32 bits of an instruction's id; these local ids are the nodes here.
"""

from __future__ import annotations

import heapq
from collections.abc import Container
from typing import Any

LOCAL_MASK = 0xFFFFFFFF


class Graph:
    """Instructions of one computation by local id, with their inputs and users.

    Attributes:
        proto: the HloComputationProto, which changes together with the maps.
        nodes: local id -> HloInstructionProto, in the order of the list.
        inputs: local id -> local ids of operands, then of control predecessors.
        users: local id -> local ids of instructions that have it among their inputs.
        root: local id of the root.
    """

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self.nodes: dict[int, Any] = {}
        self.opcodes: dict[int, str] = {}
        self.inputs: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        self.root: int = proto.root_id & LOCAL_MASK
        self._removed: set[int] = set()
        self._highest = 0  # local id, also of what is removed but not yet deleted
        for instruction in proto.instructions:
            self._add(instruction)

    def _add(self, instruction: Any) -> int:
        local: int = instruction.id & LOCAL_MASK
        self.nodes[local] = instruction
        self._highest = max(self._highest, local)
        self.users[local] = []
        self._read(local, instruction)
        return local

    def _read(self, local: int, instruction: Any) -> None:
        self.opcodes[local] = instruction.opcode
        inputs = [i & LOCAL_MASK for i in instruction.operand_ids]
        if instruction.control_predecessor_ids:
            inputs += [i & LOCAL_MASK for i in instruction.control_predecessor_ids]
        self.inputs[local] = inputs
        for i in inputs if len(inputs) < 2 else set(inputs):
            self.users[i].append(local)

    def operands(self, local: int) -> list[int]:
        """Return the local ids of the operands, without control predecessors."""
        return self.inputs[local][: len(self.nodes[local].operand_ids)]

    def only_user(self, local: int) -> int | None:
        """Return the one instruction that reads this one, or None if there are none or several."""
        users = self.users[local]
        return users[0] if len(users) == 1 and local != self.root else None

    def has_control_edges(self, local: int) -> bool:
        """Say whether control dependencies start or end at the instruction."""
        if self.nodes[local].control_predecessor_ids:
            return True
        return any(
            local in self.inputs[user][len(self.nodes[user].operand_ids) :]
            for user in self.users[local]
        )

    def set_operand(self, local: int, index: int, operand: int) -> None:
        """Make one operand of an instruction another instruction."""
        before = self.inputs[local][index]
        self.nodes[local].operand_ids[index] = self.nodes[operand].id
        self.inputs[local][index] = operand
        if before not in self.inputs[local]:
            self.users[before].remove(local)
        if local not in self.users[operand]:
            self.users[operand].append(local)

    def replace_uses(self, local: int, other: int) -> None:
        """Make every operand that is `local`, and the root, `other` instead."""
        for user in list(self.users[local]):
            for index, operand in enumerate(self.operands(user)):
                if operand == local:
                    self.set_operand(user, index, other)
        if self.root == local:
            self.root = other
            self.proto.root_id = self.nodes[other].id

    def remove(self, local: int) -> None:
        """Take an instruction without users out; `commit` deletes it from the proto."""
        self._removed.add(self.nodes.pop(local).id)
        for i in set(self.inputs.pop(local)):
            self.users[i].remove(local)
        del self.users[local], self.opcodes[local]

    def commit(self) -> None:
        """Delete from the proto what was removed, all in one pass over the list."""
        if self._removed:
            instructions = self.proto.instructions
            for index in range(len(instructions) - 1, -1, -1):
                if instructions[index].id in self._removed:
                    del instructions[index]
            self._removed.clear()

    def new_id(self) -> int:
        """Return an id that the computation does not have yet.

        Not an arbitrary large number: XLA allocates a table as long as the largest local id.
        """
        return int(self.proto.id) << 32 | (1 + self._highest)

    def append(self, instruction: Any) -> int:
        """Add a copy of an instruction at the end of the list and return its local id."""
        self.proto.instructions.append(instruction)
        return self._add(self.proto.instructions[len(self.proto.instructions) - 1])

    def reread(self, local: int) -> None:
        """Take note that opcode and operands of an instruction were changed in the proto."""
        for i in set(self.inputs[local]):
            self.users[i].remove(local)
        self._read(local, self.nodes[local])

    def depths(self, counted: Container[int]) -> dict[int, int]:
        """Return for each instruction the most counted ones on a path that ends with it.

        An instruction that is counted includes itself. Along every edge the depth does not fall,
        and it rises where an edge leads to a counted one: two counted instructions of equal depth
        are independent of each other.
        """
        depth: dict[int, int] = {}
        for local, inputs in self.inputs.items():
            deepest = 0
            for i in inputs:
                if depth[i] > deepest:
                    deepest = depth[i]
            depth[local] = deepest + 1 if local in counted else deepest
        return depth

    def sort(self, place: dict[int, int]) -> None:
        """Order the instruction list: inputs first, and otherwise by the place given.

        Args:
            place: local id -> preferred place; equal places go by local id.
        """
        waiting = {local: len(set(inputs)) for local, inputs in self.inputs.items()}
        ready = [(place[local], local) for local, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: dict[int, int] = {}
        while ready:
            _, local = heapq.heappop(ready)
            order[local] = len(order)
            for user in self.users[local]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, (place[user], user))
        if len(order) != len(self.nodes):
            raise ValueError(f"computation {self.proto.name}: the instructions form a cycle")
        self.commit()
        self.proto.instructions.sort(key=lambda instruction: order[instruction.id & LOCAL_MASK])
        for mapping in (self.nodes, self.opcodes, self.inputs):
            items = sorted(mapping.items(), key=lambda item: order[item[0]])
            mapping.clear()
            mapping.update(items)
