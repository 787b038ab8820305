//! The aggregates `arg_min(x, y)` and `arg_max(x, y)`: the value of `x` in the row where `y` is least or greatest.
//!
//! `rules/arg_extreme.rs` makes `FIRST_VALUE` of them, which range joins know and DataFusion computes for
//! many groups at once. What is left to the accumulator here are window functions, and sessions with
//! `rmq.rewrite = false`.

use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, make_comparator, new_null_array};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::{Result, ScalarValue, internal_err, plan_err};
use datafusion_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion_expr::utils::format_state_name;
use datafusion_expr::{
    Accumulator, AggregateUDFImpl, Documentation, Signature, Volatility,
    aggregate_doc_sections::DOC_SECTION_GENERAL,
};
use rmq_engine::Extreme;

/// `arg_min` or `arg_max`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct ArgExtremeUdf {
    extreme: Extreme,
    aliases: Vec<String>,
    signature: Signature,
}

impl ArgExtremeUdf {
    /// Those that there is a function of.
    pub const EXTREMES: [Extreme; 2] = [Extreme::Min, Extreme::Max];

    /// The function of the smallest or the largest value.
    pub fn new(extreme: Extreme) -> Self {
        let alias = match extreme {
            Extreme::Min => "min_by",
            Extreme::Max => "max_by",
        };
        Self {
            extreme,
            aliases: vec![alias.to_string()],
            signature: Signature::any(2, Volatility::Immutable),
        }
    }

    /// Whether it is of the smallest or the largest value.
    pub fn extreme(&self) -> Extreme {
        self.extreme
    }
}

impl AggregateUDFImpl for ArgExtremeUdf {
    fn name(&self) -> &'static str {
        match self.extreme {
            Extreme::Min => "arg_min",
            Extreme::Max => "arg_max",
        }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let [value, key] = arg_types else {
            return plan_err!(
                "{} takes 2 arguments, a value and what it is the extreme of, but {} were given",
                self.name(),
                arg_types.len()
            );
        };
        if key.is_nested() {
            return plan_err!(
                "{}: the second argument is a {key}, which has no order",
                self.name()
            );
        }
        Ok(value.clone())
    }

    fn documentation(&self) -> Option<&Documentation> {
        static DOCS: LazyLock<[Documentation; 2]> =
            LazyLock::new(|| ArgExtremeUdf::EXTREMES.map(document));
        let index = Self::EXTREMES.iter().position(|e| *e == self.extreme);
        index.map(|index| &DOCS[index])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let [value, key] = args.expr_fields else {
            return internal_err!("{} has 2 arguments", self.name());
        };
        Ok(Box::new(ArgExtreme {
            extreme: self.extreme,
            value: new_null_array(value.data_type(), 1),
            key: new_null_array(key.data_type(), 1),
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let names = ["value", "key"].into_iter();
        let fields = names.zip(args.input_fields).map(|(name, field)| {
            let name = format_state_name(args.name, name);
            Arc::new(Field::new(name, field.data_type().clone(), true))
        });
        Ok(fields.collect())
    }
}

fn document(extreme: Extreme) -> Documentation {
    let (name, least) = match extreme {
        Extreme::Min => ("arg_min", "least"),
        Extreme::Max => ("arg_max", "greatest"),
    };
    Documentation::builder(
        DOC_SECTION_GENERAL,
        format!(
            "Returns the value of x in the row where y is {least}. Rows where x or y is NULL are left out."
        ),
        format!("{name}(x, y)"),
    )
    .with_argument("x", "The value that is returned, of any type")
    .with_argument("y", "What is compared, of any type that has an order")
    .with_sql_example(format!(
        "SELECT sym, {name}(ts, price) FROM trades GROUP BY sym"
    ))
    .build()
}

/// The best row so far.
#[derive(Debug)]
struct ArgExtreme {
    extreme: Extreme,
    /// One value, NULL if there was no row.
    value: ArrayRef,
    /// One key.
    key: ArrayRef,
}

impl ArgExtreme {
    /// The order in which the best key is the least.
    fn order(&self) -> SortOptions {
        SortOptions {
            descending: self.extreme == Extreme::Max,
            nulls_first: false,
        }
    }
}

impl Accumulator for ArgExtreme {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [value, key] = values else {
            return internal_err!("a value and a key are accumulated, not {}", values.len());
        };
        let compare = make_comparator(key, key, self.order())?;
        let rows = (0..key.len()).filter(|row| value.is_valid(*row) && key.is_valid(*row));
        let best = rows.reduce(|best, row| match compare(row, best) {
            Ordering::Less => row,
            Ordering::Equal | Ordering::Greater => best,
        });
        let Some(best) = best else {
            return Ok(());
        };
        let is_first = self.value.is_null(0);
        if is_first || make_comparator(key, &self.key, self.order())?(best, 0).is_lt() {
            // Copies, as slices would keep their batch.
            self.value = ScalarValue::try_from_array(value, best)?.to_array()?;
            self.key = ScalarValue::try_from_array(key, best)?.to_array()?;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        ScalarValue::try_from_array(&self.value, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value.get_array_memory_size() + self.key.get_array_memory_size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        [&self.value, &self.key]
            .map(|part| ScalarValue::try_from_array(part, 0))
            .into_iter()
            .collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}
