//! The messages of the format. A change of one, or of the lists in `values.rs`, is a new version of the format
//! (`envelope.rs`).

use datafusion_proto::protobuf::{
    ArrowType, JoinFilter, LogicalExprNode, PhysicalExprNode, PhysicalPlanNode, ScalarValue, Schema,
};

/// An operator, besides its inputs.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Operator {
    #[prost(oneof = "OperatorKind", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub(crate) kind: Option<OperatorKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum OperatorKind {
    #[prost(message, tag = "1")]
    RangeJoin(Box<RangeJoin>),
    #[prost(message, tag = "2")]
    RangeLookup(RangeLookup),
    #[prost(message, tag = "3")]
    PrepareIndexes(PrepareIndexes),
    /// The window operator of `DataFusion` that a `WindowFrameExec` takes the place of, over placeholders.
    #[prost(message, tag = "4")]
    WindowFrame(Box<PhysicalPlanNode>),
    /// The plan whose rows an `OrderedRowsExec` returns.
    #[prost(message, tag = "5")]
    OrderedRows(Box<PhysicalPlanNode>),
    /// An operator over placeholders whose functions this codec knows.
    #[prost(message, tag = "6")]
    Carried(Box<PhysicalPlanNode>),
    /// A note above its input.
    #[prost(string, tag = "7")]
    Note(String),
    #[prost(message, tag = "8")]
    RowPositions(RowPositions),
}

/// The paths of all files, in the order of their rows.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RowPositions {
    #[prost(string, repeated, tag = "1")]
    pub(crate) files: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeJoin {
    #[prost(message, required, tag = "1")]
    pub(crate) spec: RangeJoinSpec,
    #[prost(message, optional, tag = "2")]
    pub(crate) row_join: Option<RowJoin>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) label: Vec<String>,
    #[prost(uint32, tag = "4")]
    pub(crate) mode: u32,
    #[prost(bool, tag = "5")]
    pub(crate) is_undivided: bool,
    #[prost(uint64, optional, tag = "6")]
    pub(crate) fetch: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    pub(crate) probe_rows: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    pub(crate) position: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeJoinSpec {
    #[prost(uint32, tag = "1")]
    pub(crate) unmatched: u32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) probe_keys: Vec<PhysicalExprNode>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) build_keys: Vec<PhysicalExprNode>,
    #[prost(message, required, tag = "4")]
    pub(crate) key: PhysicalExprNode,
    #[prost(message, repeated, tag = "5")]
    pub(crate) bounds: Vec<Bound>,
    #[prost(bool, tag = "6")]
    pub(crate) prevailing: bool,
    #[prost(message, repeated, tag = "7")]
    pub(crate) thresholds: Vec<PhysicalExprNode>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) aggregates: Vec<Aggregate>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) metadata: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Bound {
    #[prost(uint32, tag = "1")]
    pub(crate) comparison: u32,
    #[prost(message, required, tag = "2")]
    pub(crate) bound: PhysicalExprNode,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Aggregate {
    #[prost(message, required, tag = "1")]
    pub(crate) function: AggregateKind,
    #[prost(message, repeated, tag = "2")]
    pub(crate) arguments: Vec<PhysicalExprNode>,
    #[prost(string, tag = "3")]
    pub(crate) output: String,
    #[prost(message, required, tag = "4")]
    pub(crate) data_type: ArrowType,
    #[prost(message, optional, tag = "5")]
    pub(crate) call: Option<AccumulatorCall>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AggregateKind {
    #[prost(oneof = "AggregateFunction", tags = "1, 2, 3, 4, 5")]
    pub(crate) function: Option<AggregateFunction>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum AggregateFunction {
    /// One that has nothing more to tell.
    #[prost(uint32, tag = "1")]
    Plain(u32),
    #[prost(uint32, tag = "2")]
    Extreme(u32),
    #[prost(message, tag = "3")]
    AtExtreme(AtExtreme),
    #[prost(message, tag = "4")]
    AtCrossing(Crossing),
    #[prost(message, tag = "5")]
    CountCrossing(Crossing),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AtExtreme {
    #[prost(uint32, tag = "1")]
    pub(crate) extreme: u32,
    #[prost(bool, tag = "2")]
    pub(crate) nulls_first: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Crossing {
    #[prost(uint32, tag = "1")]
    pub(crate) end: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) comparison: u32,
    #[prost(uint64, tag = "3")]
    pub(crate) threshold: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a clause of the call that is there or not"
)]
pub(crate) struct AccumulatorCall {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// What a codec knows of the function besides its name.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) definition: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) literals: Vec<Literal>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) order_by: Vec<AccumulatorOrder>,
    #[prost(bool, tag = "5")]
    pub(crate) is_filtered: bool,
    #[prost(bool, tag = "6")]
    pub(crate) is_distinct: bool,
    #[prost(bool, tag = "7")]
    pub(crate) ignores_nulls: bool,
    #[prost(bool, tag = "8")]
    pub(crate) returns_state: bool,
    #[prost(string, tag = "9")]
    pub(crate) text: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Literal {
    #[prost(message, optional, tag = "1")]
    pub(crate) value: Option<ScalarValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AccumulatorOrder {
    #[prost(uint64, tag = "1")]
    pub(crate) argument: u64,
    #[prost(bool, tag = "2")]
    pub(crate) ascending: bool,
    #[prost(bool, tag = "3")]
    pub(crate) nulls_first: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RowJoin {
    #[prost(uint32, tag = "1")]
    pub(crate) join_type: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) residual: Option<JoinFilter>,
    #[prost(message, optional, tag = "3")]
    pub(crate) threshold: Option<RowThreshold>,
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) build_columns: Vec<u64>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) columns: Vec<OutputColumn>,
    #[prost(message, required, tag = "6")]
    pub(crate) schema: Schema,
    #[prost(message, optional, tag = "7")]
    pub(crate) limit: Option<RowLimit>,
    #[prost(message, optional, tag = "8")]
    pub(crate) distance: Option<PairDistance>,
    #[prost(message, optional, tag = "9")]
    pub(crate) order: Option<PhysicalExprNode>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OutputColumn {
    #[prost(uint64, tag = "1")]
    pub(crate) index: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) side: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RowThreshold {
    #[prost(message, required, tag = "1")]
    pub(crate) value: PhysicalExprNode,
    #[prost(bool, tag = "2")]
    pub(crate) is_ranked: bool,
    #[prost(uint32, tag = "3")]
    pub(crate) comparison: u32,
    #[prost(message, required, tag = "4")]
    pub(crate) limit: PhysicalExprNode,
    #[prost(message, optional, tag = "5")]
    pub(crate) rest: Option<JoinFilter>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RowLimit {
    #[prost(bool, tag = "1")]
    pub(crate) descending: bool,
    #[prost(uint64, tag = "2")]
    pub(crate) skip: u64,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) fetch: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PairDistance {
    #[prost(message, required, tag = "1")]
    pub(crate) point: PhysicalExprNode,
    #[prost(message, required, tag = "2")]
    pub(crate) by: JoinFilter,
    #[prost(message, required, tag = "3")]
    pub(crate) grows: JoinFilter,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeLookup {
    #[prost(message, repeated, tag = "1")]
    pub(crate) calls: Vec<RangeCall>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) relations: Vec<Relation>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeCall {
    /// The index of the function in `RangeFunction::ALL`.
    #[prost(uint32, tag = "1")]
    pub(crate) function: u32,
    /// The id of one of the relations.
    #[prost(fixed64, tag = "2")]
    pub(crate) relation: u64,
    #[prost(string, tag = "3")]
    pub(crate) column: String,
    #[prost(message, required, tag = "4")]
    pub(crate) left: PhysicalExprNode,
    #[prost(message, required, tag = "5")]
    pub(crate) right: PhysicalExprNode,
    #[prost(message, optional, tag = "6")]
    pub(crate) threshold: Option<PhysicalExprNode>,
    #[prost(string, tag = "7")]
    pub(crate) output: String,
    #[prost(message, required, tag = "8")]
    pub(crate) data_type: ArrowType,
    #[prost(bool, tag = "9")]
    pub(crate) volatile: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PrepareIndexes {
    #[prost(message, repeated, tag = "1")]
    pub(crate) lookups: Vec<IndexLookup>,
    #[prost(string, tag = "2")]
    pub(crate) run: String,
    #[prost(bool, tag = "3")]
    pub(crate) is_collected: bool,
    #[prost(message, repeated, tag = "4")]
    pub(crate) relations: Vec<Relation>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct IndexLookup {
    #[prost(uint32, tag = "1")]
    pub(crate) function: u32,
    /// The id of one of the relations.
    #[prost(fixed64, tag = "2")]
    pub(crate) relation: u64,
    #[prost(string, tag = "3")]
    pub(crate) column: String,
    #[prost(fixed64, tag = "4")]
    pub(crate) slot: u64,
}

/// A relation. Operators of one plan with the same id share it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Relation {
    #[prost(fixed64, tag = "1")]
    pub(crate) id: u64,
    #[prost(string, tag = "2")]
    pub(crate) label: String,
    #[prost(bool, tag = "3")]
    pub(crate) is_subquery: bool,
    #[prost(message, required, tag = "4")]
    pub(crate) plan: PhysicalPlanNode,
    #[prost(message, repeated, tag = "5")]
    pub(crate) indexes: Vec<RequiredIndex>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequiredIndex {
    #[prost(string, tag = "1")]
    pub(crate) column: String,
    #[prost(uint32, tag = "2")]
    pub(crate) kind: u32,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) ranges: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) in_expression: bool,
}

/// A scalar function, besides its name.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ScalarFunction {
    #[prost(oneof = "ScalarFunctionKind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) kind: Option<ScalarFunctionKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ScalarFunctionKind {
    #[prost(message, tag = "1")]
    KeyBound(KeyBound),
    #[prost(message, tag = "2")]
    OrderKey(OrderKey),
    #[prost(message, tag = "3")]
    OrderBound(OrderBound),
    #[prost(message, tag = "4")]
    DecimalAverage(ArrowType),
    #[prost(message, tag = "5")]
    Fallible(Fallible),
    #[prost(message, tag = "6")]
    IndexLookup(IndexLookupFunction),
    #[prost(message, tag = "7")]
    FloatBound(FloatBound),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FloatBound {
    #[prost(bool, tag = "1")]
    pub(crate) is_lower: bool,
    #[prost(double, tag = "2")]
    pub(crate) length: f64,
}

/// Integers of 128 bits are 16 bytes, the least significant first.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyBound {
    #[prost(uint32, tag = "1")]
    pub(crate) comparison: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) factor: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) bound_factor: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) offset: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub(crate) opposite: Option<Vec<u8>>,
    #[prost(message, required, tag = "6")]
    pub(crate) key_type: ArrowType,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OrderKey {
    /// For each value whether its order is descending, and whether NULL comes first.
    #[prost(bool, repeated, tag = "1")]
    pub(crate) descending: Vec<bool>,
    #[prost(bool, repeated, tag = "2")]
    pub(crate) nulls_first: Vec<bool>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OrderBound {
    #[prost(uint64, optional, tag = "1")]
    pub(crate) after: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Fallible {
    #[prost(bool, tag = "1")]
    pub(crate) is_error: bool,
    #[prost(message, required, tag = "2")]
    pub(crate) expr: LogicalExprNode,
    #[prost(message, repeated, tag = "3")]
    pub(crate) types: Vec<ArrowType>,
    #[prost(message, required, tag = "4")]
    pub(crate) data_type: ArrowType,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct IndexLookupFunction {
    #[prost(uint32, tag = "1")]
    pub(crate) function: u32,
    #[prost(message, required, tag = "2")]
    pub(crate) data_type: ArrowType,
    #[prost(fixed64, tag = "3")]
    pub(crate) slot: u64,
}

/// An aggregate of another aggregate's states.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MergedStates {
    #[prost(message, required, tag = "1")]
    pub(crate) call: AccumulatorCall,
    #[prost(message, repeated, tag = "2")]
    pub(crate) types: Vec<ArrowType>,
    #[prost(uint32, tag = "3")]
    pub(crate) unmatched: u32,
}
