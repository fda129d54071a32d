"""The base of every configuration section: unknown keys are errors, values never change after loading, and every field takes
its value by the same rules (`rl_system.config.fields`).
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from rl_system.config.fields import settle


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def as_its_field_wants_it(cls, value: Any, info: ValidationInfo) -> Any:
        return settle(value, cls.model_fields[info.field_name].annotation)
