//! The window form: frames with bounds that differ from row to row, by position or by the ORDER BY expression.
//!
//! ```text
//!   frame_min(value, l, r) OVER (PARTITION BY … ORDER BY …)              the rows from position l to position r
//!   range_frame_min(value, low, high) OVER (PARTITION BY … ORDER BY k)   the rows where k is from low to high
//! ```
//!
//! Positions count the rows of the partition. The second form has `k` as one more argument, which `CheckFrameCalls`
//! adds.

use std::sync::{Arc, LazyLock};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::{Result, exec_datafusion_err, internal_err};
use datafusion_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion_expr::{
    Documentation, PartitionEvaluator, Signature, Volatility, WindowUDFImpl,
    window_doc_sections::DOC_SECTION_ANALYTICAL,
};

use crate::expr::key_frame::key_positions;
use crate::expr::range_udf::document_last;
use rmq_arrow::common::range_function::RangeFunction;
use rmq_arrow::common::ranges::{check_argument_count, coerce_bound};
use rmq_arrow::index::column_index::ColumnIndex;
use rmq_arrow::index::sort_keys::Chunks;
use rmq_arrow::index::threshold::check_comparable;

/// What the bounds of a frame are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameBounds {
    /// Positions in the partition.
    Positions,
    /// Values of the ORDER BY expression.
    Keys,
}

/// One of the range functions as a window function, `frame_min` or `range_frame_min` and their like.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct FrameUdf {
    function: RangeFunction,
    bounds: FrameBounds,
    name: String,
    signature: Signature,
}

impl FrameUdf {
    /// The window function of a range function, with these bounds.
    pub fn new(function: RangeFunction, bounds: FrameBounds) -> Self {
        let name = function.frame_name();
        Self {
            function,
            bounds,
            name: match bounds {
                FrameBounds::Positions => name.to_string(),
                FrameBounds::Keys => format!("range_{name}"),
            },
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }

    /// What its bounds are.
    pub fn bounds(&self) -> FrameBounds {
        self.bounds
    }

    /// The number of arguments in SQL.
    pub fn argument_count(&self) -> usize {
        self.function.argument_count()
    }

    /// # Errors
    /// A planning error if a call has another number of arguments.
    pub fn check_argument_count(&self, given: usize) -> Result<()> {
        let bounds = match self.bounds {
            FrameBounds::Positions => "the first position in the partition, the last",
            FrameBounds::Keys => "the least value of the ORDER BY expression, the greatest",
        };
        let what = match self.function.last_argument() {
            Some(last) => format!("a value, {bounds} and {}", last.meaning),
            None => format!("a value, {}", bounds.replacen(", the", " and the", 1)),
        };
        check_argument_count(&self.name, given, self.argument_count(), &what)
    }

    /// Whether a call of so many arguments has the ORDER BY expression already.
    fn has_key(&self, given: usize) -> bool {
        self.bounds == FrameBounds::Keys && given == self.argument_count() + 1
    }
}

impl WindowUDFImpl for FrameUdf {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name();
        let (arg_types, key) = if self.has_key(arg_types.len()) {
            arg_types.split_at(self.argument_count())
        } else {
            self.check_argument_count(arg_types.len())?;
            (arg_types, &[][..])
        };
        let [value, left, right, last @ ..] = arg_types else {
            return internal_err!("a range function has at least three arguments");
        };
        self.function
            .check_column(name, "its first argument", value)?;
        let mut types = vec![value.clone()];
        match self.bounds {
            FrameBounds::Positions => {
                types.push(coerce_bound(name, "l", left)?);
                types.push(coerce_bound(name, "r", right)?);
            }
            // They get the type of the ORDER BY expression, which no argument has yet.
            FrameBounds::Keys => types.extend([left.clone(), right.clone()]),
        }
        for last in last {
            if self.function.has_threshold() {
                check_comparable(name, value, last)?;
            }
            types.push(self.function.coerce_last(name, last)?);
        }
        types.extend_from_slice(key);
        Ok(types)
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        let given = args.input_fields().len();
        if !self.has_key(given) {
            self.check_argument_count(given)?;
        }
        let data_type = self
            .function
            .result_type(args.input_fields()[0].data_type());
        Ok(Arc::new(Field::new(args.name(), data_type, true)))
    }

    fn partition_evaluator(
        &self,
        _args: PartitionEvaluatorArgs,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(FrameEvaluator {
            function: self.function,
            bounds: self.bounds,
        }))
    }

    fn documentation(&self) -> Option<&Documentation> {
        static DOCS: LazyLock<[[Documentation; RangeFunction::ALL.len()]; 2]> =
            LazyLock::new(|| {
                [FrameBounds::Positions, FrameBounds::Keys]
                    .map(|bounds| RangeFunction::ALL.map(|function| document(function, bounds)))
            });
        let all = &DOCS[usize::from(self.bounds == FrameBounds::Keys)];
        self.function.index().map(|index| &all[index])
    }
}

fn document(function: RangeFunction, bounds: FrameBounds) -> Documentation {
    let udf = FrameUdf::new(function, bounds);
    let name = &udf.name;
    let result = function.description();
    let last = function.last_argument();
    let shown_last = last
        .as_ref()
        .map_or_else(String::new, |last| format!(", {}", last.name));
    let (rows, [l, r], [of_l, of_r], example) = match bounds {
        FrameBounds::Positions => (
            "from position l to position r",
            ["l", "r"],
            [
                "The first position, an integer; positions count the partition's rows from 0 in the order of ORDER BY",
                "The last position, an integer",
            ],
            "l, r",
        ),
        FrameBounds::Keys => (
            "where the ORDER BY expression is from low to high",
            ["low", "high"],
            [
                "The least value of the ORDER BY expression, of a type that converts to its type without loss",
                "The greatest value of the ORDER BY expression",
            ],
            "ts - INTERVAL '1 hour', ts",
        ),
    };
    let docs = Documentation::builder(
        DOC_SECTION_ANALYTICAL,
        format!(
            "Returns the {result} of an expression in the rows of the partition {rows}, both inclusive, NULLs skipped.",
        ),
        format!("{name}(value, {l}, {r}{shown_last})"),
    )
    .with_argument("value", "Any expression of an ordered type")
    .with_argument(l, of_l)
    .with_argument(r, of_r);
    let docs = document_last(function, docs);
    docs.with_sql_example(format!(
        "SELECT {name}(close, {example}{shown_last}) OVER (PARTITION BY sym ORDER BY ts) FROM quotes"
    ))
    .build()
}

/// Answers all rows of one partition at once.
#[derive(Debug)]
struct FrameEvaluator {
    function: RangeFunction,
    bounds: FrameBounds,
}

impl PartitionEvaluator for FrameEvaluator {
    fn evaluate_all(&mut self, values: &[ArrayRef], _num_rows: usize) -> Result<ArrayRef> {
        let (values, key) = values.split_at(self.function.argument_count().min(values.len()));
        let [value, left, right, last @ ..] = values else {
            return internal_err!(
                "{} takes {} arguments, not {}",
                self.function.frame_name(),
                self.function.argument_count(),
                values.len()
            );
        };
        let positions = match (self.bounds, key) {
            (FrameBounds::Positions, _) => None,
            (FrameBounds::Keys, [key]) => Some(key_positions(key, left, right)?),
            (FrameBounds::Keys, _) => {
                return internal_err!("a frame by keys has no ORDER BY expression");
            }
        };
        let (left, right) = match &positions {
            Some((left, right)) => (left, right),
            None => (left, right),
        };
        // DataFusion's tasks use all cores already, so each index is built on one thread.
        let chunks = Chunks::borrowed(vec![Arc::clone(value)]);
        let kind = self.function.index_kind();
        let index = ColumnIndex::on_cpu(&chunks, value.data_type(), kind, 1, &|| false)?;
        let name = self.function.frame_name();
        let answer = index.call(self.function, name, (left, right), last)?;
        let array = answer.values.or(answer.positions);
        array.ok_or_else(|| exec_datafusion_err!("the index did not answer {name}"))
    }
}
