//! What the protocol calls element types.

use graphene_runtime::DType;

/// A row a type that the protocol has.
const TABLE: [(DType, &str); 13] = [
    (DType::Bool, "BOOL"),
    (DType::U8, "UINT8"),
    (DType::U16, "UINT16"),
    (DType::U32, "UINT32"),
    (DType::U64, "UINT64"),
    (DType::I8, "INT8"),
    (DType::I16, "INT16"),
    (DType::I32, "INT32"),
    (DType::I64, "INT64"),
    (DType::F16, "FP16"),
    (DType::F32, "FP32"),
    (DType::F64, "FP64"),
    (DType::BF16, "BF16"),
];

/// The protocol's name of a type; our own of one that the protocol does not have.
pub(crate) fn name(dtype: DType) -> &'static str {
    TABLE.iter().find(|row| row.0 == dtype).map_or(dtype.name(), |row| row.1)
}

/// The type of that name in the protocol.
pub(crate) fn of_name(name: &str) -> Option<DType> {
    TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
}
