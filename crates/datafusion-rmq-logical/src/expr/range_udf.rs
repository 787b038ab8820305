//! The scalar form, `range_min('table.column', l, r)`. A scalar function sees batches, never a table, so this one only
//! declares its arguments and its type. A rule in `rewrite` extracts each call from its expression, and an operator
//! answers it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::config::ConfigOptions;
use datafusion_common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{
    ColumnarValue, Documentation, DocumentationBuilder, Expr, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility, scalar_doc_sections::DOC_SECTION_OTHER,
};

use crate::common::column_ref::Names;
use rmq_arrow::common::range_function::RangeFunction;
use rmq_arrow::common::ranges::{check_argument_count, coerce_bound};
use rmq_arrow::index::threshold::check_comparable;

/// One of the range functions, `range_min` and its like, as a scalar function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct RangeUdf {
    function: RangeFunction,
    names: Names,
    signature: Signature,
}

impl RangeUdf {
    /// The scalar function of a range function, which resolves names of columns so.
    pub fn new(function: RangeFunction, names: Names) -> Self {
        // Within a query a column has one version, so the function is stable. But DataFusion may fold a stable call, or
        // push it into a scan, before the rule extracts it.
        Self {
            function,
            names,
            signature: Signature::user_defined(Volatility::Volatile),
        }
    }

    /// The function.
    pub fn function(&self) -> RangeFunction {
        self.function
    }

    /// # Errors
    /// A planning error if a call has another number of arguments.
    fn check_argument_count(&self, given: usize) -> Result<()> {
        let what = match self.function.last_argument() {
            Some(last) => format!(
                "a column, the first position, the last and {}",
                last.meaning
            ),
            None => "a column, the first position and the last".to_string(),
        };
        check_argument_count(self.name(), given, self.function.argument_count(), &what)
    }

    /// The names that its first argument is one of.
    pub fn names(&self) -> &Names {
        &self.names
    }
}

/// Returns the column whose rows a call of a range function looks at: that of a table, or the only one of a subquery.
/// `None` for a call of another function, and for a column that is not found.
#[must_use]
pub fn ranged_column(call: &ScalarFunction) -> Option<FieldRef> {
    let udf = call.func.inner().downcast_ref::<RangeUdf>()?;
    match call.args.first()? {
        Expr::Literal(literal, _) => {
            let name = udf.names.parse(udf.name(), literal.try_as_str()??).ok()?;
            udf.names.field(udf.name(), &name).ok()
        }
        Expr::ScalarSubquery(query) => query.subquery.schema().fields().first().cloned(),
        _ => None,
    }
}

impl ScalarUDFImpl for RangeUdf {
    fn name(&self) -> &str {
        self.function.range_name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name();
        self.check_argument_count(arg_types.len())?;
        let [column, left, right, last @ ..] = arg_types else {
            return internal_err!("a range function has at least three arguments");
        };
        let mut types = vec![
            column.clone(),
            coerce_bound(name, "l", left)?,
            coerce_bound(name, "r", right)?,
        ];
        for last in last {
            types.push(self.function.coerce_last(name, last)?);
        }
        Ok(types)
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        internal_err!(
            "the type of {} follows from the column that its first argument names",
            self.name()
        )
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.check_argument_count(args.arg_fields.len())?;
        let column = match args.scalar_arguments[0] {
            Some(literal) => {
                let text = column_text(self.name(), literal)?;
                self.names
                    .field(self.name(), &self.names.parse(self.name(), text)?)?
            }
            // A subquery has one column, with the type of this field. The rule rejects all other arguments.
            None => Arc::clone(&args.arg_fields[0]),
        };
        self.function
            .check_column(self.name(), column.name(), column.data_type())?;
        if let Some(threshold) = args.arg_fields.get(3)
            && self.function.has_threshold()
        {
            check_comparable(self.name(), column.data_type(), threshold.data_type())?;
        }
        let data_type = self.function.result_type(column.data_type());
        Ok(Arc::new(Field::new(self.name(), data_type, true)))
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        Some(ScalarUDF::from(Self::new(
            self.function,
            self.names.with_config(config),
        )))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        // To decorrelate a subquery, DataFusion evaluates it for an empty group. That result needs no table.
        let null = |bound: &ColumnarValue| matches!(bound, ColumnarValue::Scalar(s) if s.is_null());
        if args.args.iter().skip(1).any(null) {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from(
                args.return_field.data_type(),
            )?));
        }
        exec_err!(
            "{} was not planned as a range query: it needs a table's rows, which an expression on its own can't see. It works in \
             queries and DataFrames of a session in which datafusion-rmq is registered",
            self.name()
        )
    }

    fn documentation(&self) -> Option<&Documentation> {
        use std::sync::LazyLock;
        static DOCS: LazyLock<[Documentation; RangeFunction::ALL.len()]> =
            LazyLock::new(|| RangeFunction::ALL.map(document));
        self.function.index().map(|index| &DOCS[index])
    }
}

fn document(function: RangeFunction) -> Documentation {
    let name = function.range_name();
    let result = function.description();
    let arguments = function.shown_arguments();
    let docs = Documentation::builder(
        DOC_SECTION_OTHER,
        format!("Returns the {result} of a table's column in the rows from position l to position r, both inclusive, NULLs skipped."),
        format!("{name}('table.column', {arguments})"),
    )
    .with_argument("column", "A string literal that names a column of a table, or a subquery of one column with an ORDER BY")
    .with_argument("l", "The first position, an integer; positions count the table's rows from 0 in scan order")
    .with_argument("r", "The last position, an integer");
    let docs = document_last(function, docs);
    docs.with_sql_example(format!(
        "SELECT {name}('prices.close', {arguments}) FROM windows"
    ))
    .build()
}

/// Adds the argument after the bounds to documentation, if the function has one.
pub fn document_last(function: RangeFunction, docs: DocumentationBuilder) -> DocumentationBuilder {
    match function.last_argument() {
        Some(last) => docs.with_argument(last.name, last.description),
        None => docs,
    }
}

/// The text of a literal first argument.
///
/// # Errors
/// A planning error if the literal is not a string.
pub fn column_text<'a>(function: &str, literal: &'a ScalarValue) -> Result<&'a str> {
    match literal.try_as_str() {
        Some(Some(text)) => Ok(text),
        _ => plan_err!(
            "{function}: the first argument must be a string that names a column, such as 'prices.close', or a subquery; found {literal}"
        ),
    }
}
