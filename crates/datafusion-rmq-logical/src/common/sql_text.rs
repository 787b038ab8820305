//! Expressions and literals as SQL writes them, for messages and EXPLAIN.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::types::{IntervalDayTime, IntervalMonthDayNano};
use arrow::util::display::array_value_to_string;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Column, ScalarValue};
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_physical_expr::PhysicalExprRef;
use datafusion_physical_expr::expressions::{Column as PhysicalColumn, Literal, UnKnownColumn};
use datafusion_physical_expr_common::physical_expr::fmt_sql;

/// The most characters of a literal that are shown.
const MAX_LITERAL: usize = 60;

/// An expression with its literals, and columns of an outer query, as SQL writes them.
pub fn sql_text(expr: &Expr) -> String {
    // The name of a column is shown as it is.
    let named = |name: String| Transformed::yes(Expr::Column(Column::new_unqualified(name)));
    let shown = expr.clone().transform_up(|e| {
        Ok(match e {
            Expr::Literal(value, _) => named(literal_text(&value)),
            Expr::OuterReferenceColumn(_, column) | Expr::Column(column) => {
                let name = shown_name(&column.name).into_owned();
                Transformed::yes(Expr::Column(Column { name, ..column }))
            }
            e => Transformed::no(e),
        })
    });
    match shown {
        Ok(shown) => shown.data.to_string(),
        Err(_) => expr.to_string(),
    }
}

/// The part of a query that a node is, as messages name it.
pub fn clause(plan: &LogicalPlan) -> String {
    let name = match plan {
        LogicalPlan::Projection(_) => "a SELECT list",
        LogicalPlan::Filter(_) => "a condition",
        LogicalPlan::Window(_) => "a window function",
        LogicalPlan::Aggregate(_) => "GROUP BY or an aggregate",
        LogicalPlan::Sort(_) => "ORDER BY",
        LogicalPlan::Join(_) => "a join",
        LogicalPlan::Union(_) => "UNION",
        LogicalPlan::Limit(_) => "LIMIT",
        LogicalPlan::Distinct(_) => "DISTINCT",
        LogicalPlan::Values(_) => "VALUES",
        LogicalPlan::Unnest(_) => "unnest",
        LogicalPlan::EmptyRelation(_) => "a SELECT without FROM",
        LogicalPlan::SubqueryAlias(alias) => return format!("the rows of {}", alias.alias),
        LogicalPlan::TableScan(scan) => return format!("the rows of {}", scan.table_name),
        other => return cut(&other.display().to_string(), MAX_LITERAL),
    };
    name.to_string()
}

/// As [`sql_text`], of a physical expression.
pub fn physical_text(expr: &PhysicalExprRef) -> String {
    fmt_sql(with_literals(expr).as_ref()).to_string()
}

/// A physical expression with the numbers of its columns, and literals as SQL writes them.
pub fn numbered_text(expr: &PhysicalExprRef) -> String {
    with_literals(expr).to_string()
}

/// The name of a column, which is that of a call where `DataFusion` has one evaluated before its rows are unnested.
fn shown_name(name: &str) -> Cow<'_, str> {
    match name.strip_prefix("__unnest_placeholder(") {
        Some(call) => Cow::Owned(format!("unnest({}", call.replace(",depth=1)", ")"))),
        None => Cow::Borrowed(name),
    }
}

/// The expression with a column in place of each literal. The name of a column is shown as it is.
fn with_literals(expr: &PhysicalExprRef) -> PhysicalExprRef {
    let shown = Arc::clone(expr).transform_up(|e| {
        if let Some(literal) = e.downcast_ref::<Literal>() {
            let named = UnKnownColumn::new(&literal_text(literal.value()));
            return Ok(Transformed::yes(Arc::new(named) as PhysicalExprRef));
        }
        let column = e.downcast_ref::<PhysicalColumn>();
        Ok(
            match column.map(|column| (shown_name(column.name()), column)) {
                Some((Cow::Owned(name), column)) => {
                    let named = PhysicalColumn::new(&name, column.index());
                    Transformed::yes(Arc::new(named) as PhysicalExprRef)
                }
                _ => Transformed::no(e),
            },
        )
    });
    shown.map_or_else(|_| Arc::clone(expr), |shown| shown.data)
}

/// A literal as SQL writes it, cut if it is long.
pub fn literal_text(value: &ScalarValue) -> String {
    if value.is_null() {
        return "NULL".to_string();
    }
    let quoted = |text: &str| format!("'{}'", cut(&text.replace('\'', "''"), MAX_LITERAL));
    let shown = || match value
        .to_array()
        .map(|array| array_value_to_string(&array, 0))
    {
        Ok(Ok(text)) => text,
        _ => value.to_string(),
    };
    match value {
        ScalarValue::IntervalMonthDayNano(Some(interval)) => {
            let IntervalMonthDayNano {
                months,
                days,
                nanoseconds,
            } = *interval;
            interval_text(months, days, nanoseconds)
        }
        ScalarValue::IntervalDayTime(Some(IntervalDayTime { days, milliseconds })) => {
            interval_text(0, *days, i64::from(*milliseconds) * 1_000_000)
        }
        ScalarValue::IntervalYearMonth(Some(months)) => interval_text(*months, 0, 0),
        ScalarValue::Dictionary(_, value) => literal_text(value),
        ScalarValue::Date32(_) | ScalarValue::Date64(_) => format!("DATE {}", quoted(&shown())),
        ScalarValue::TimestampSecond(..)
        | ScalarValue::TimestampMillisecond(..)
        | ScalarValue::TimestampMicrosecond(..)
        | ScalarValue::TimestampNanosecond(..) => format!("TIMESTAMP {}", quoted(&shown())),
        _ => match value.try_as_str() {
            Some(Some(text)) => quoted(text),
            _ if value.data_type().is_nested() => cut(&nested_text(value), MAX_LITERAL),
            _ => cut(&shown(), MAX_LITERAL),
        },
    }
}

/// The first value of a list and its length, because all of them may be megabytes; of another nested value its type.
fn nested_text(value: &ScalarValue) -> String {
    let lengths = match value {
        ScalarValue::List(list) => Some((list.value(0), list.value_length(0))),
        _ => None,
    };
    match lengths {
        Some((values, count)) if count > 1 => match ScalarValue::try_from_array(&values, 0) {
            Ok(first) => format!("[{}, … {count} values]", literal_text(&first)),
            Err(_) => format!("[{count} values]"),
        },
        Some((values, 1)) => match ScalarValue::try_from_array(&values, 0) {
            Ok(only) => format!("[{}]", literal_text(&only)),
            Err(_) => "[1 value]".to_string(),
        },
        Some(_) => "[]".to_string(),
        None => format!("a {}", value.data_type()),
    }
}

fn interval_text(months: i32, days: i32, nanoseconds: i64) -> String {
    const SECOND: i64 = 1_000_000_000;
    let seconds = nanoseconds / SECOND;
    let mut parts = vec![];
    let mut add = |number: i64, unit: &str| {
        if number != 0 {
            let s = if number.abs() == 1 { "" } else { "s" };
            parts.push(format!("{number} {unit}{s}"));
        }
    };
    add(i64::from(months / 12), "year");
    add(i64::from(months % 12), "month");
    add(i64::from(days), "day");
    add(seconds / 3600, "hour");
    add(seconds / 60 % 60, "minute");
    let (seconds, fraction) = (seconds % 60, nanoseconds % SECOND);
    if fraction == 0 {
        add(seconds, "second");
    } else {
        let sign = if nanoseconds < 0 { "-" } else { "" };
        let digits = format!("{:09}", fraction.abs());
        let (seconds, digits) = (seconds.abs(), digits.trim_end_matches('0'));
        parts.push(format!("{sign}{seconds}.{digits} seconds"));
    }
    if parts.is_empty() {
        parts.push("0 seconds".to_string());
    }
    format!("INTERVAL '{}'", parts.join(" "))
}

/// The text of a plan whose intervals are as SQL writes them, where DataFusion shows how it keeps them:
/// `IntervalMonthDayNano { months: 0, days: 0, nanoseconds: 3600000000000 }`, also within `IntervalMonthDayNano("…")`.
pub fn with_intervals(plan: &str) -> String {
    const NAME: &str = "IntervalMonthDayNano";
    let mut shown = String::new();
    let mut rest = plan;
    while let Some(at) = rest.find(NAME) {
        let (before, interval) = rest.split_at(at);
        shown.push_str(before);
        rest = match kept_interval(&interval[NAME.len()..]) {
            Some((interval, rest)) => {
                shown.push_str(&interval);
                rest
            }
            None => {
                shown.push_str(NAME);
                &interval[NAME.len()..]
            }
        };
    }
    shown + rest
}

/// The interval whose fields a text begins with, and the text after it.
fn kept_interval(text: &str) -> Option<(String, &str)> {
    let quoted = text.strip_prefix("(\"IntervalMonthDayNano");
    let (fields, rest) = quoted
        .unwrap_or(text)
        .strip_prefix(" { months: ")?
        .split_once(" }")?;
    let (months, fields) = fields.split_once(", days: ")?;
    let (days, nanoseconds) = fields.split_once(", nanoseconds: ")?;
    let interval = interval_text(
        months.parse().ok()?,
        days.parse().ok()?,
        nanoseconds.parse().ok()?,
    );
    let rest = if quoted.is_some() {
        rest.strip_prefix("\")")?
    } else {
        rest
    };
    Some((interval, rest))
}

/// A text for the tree form of EXPLAIN: `DataFusion` counts characters there, breaks lines at that byte, and panics
/// within a character of several bytes.
pub fn tree_text(text: &str) -> String {
    let text = text.replace('…', "...");
    text.replace(|c: char| !c.is_ascii(), "?")
}

/// The text if it is short, else its beginning.
pub fn cut(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Int64Type;
    use datafusion_common::utils::SingleRowListArrayBuilder;
    use datafusion_expr::{col, lit};

    #[test]
    fn intervals_of_plans_are_shown_as_sql_writes_them() {
        let hour = "{ months: 0, days: 0, nanoseconds: 3600000000000 }";
        for (plan, expected) in [
            (
                "a - IntervalMonthDayNano HOUR as b",
                "a - INTERVAL '1 hour' as b",
            ),
            (
                "x >= IntervalMonthDayNano(\"IntervalMonthDayNano HOUR\") AND y",
                "x >= INTERVAL '1 hour' AND y",
            ),
            ("IntervalMonthDayNano(NULL)", "IntervalMonthDayNano(NULL)"),
            (
                "IntervalMonthDayNano { months: x }",
                "IntervalMonthDayNano { months: x }",
            ),
            ("no interval", "no interval"),
        ] {
            assert_eq!(with_intervals(&plan.replace("HOUR", hour)), expected);
        }
        let several = ScalarValue::new_interval_mdn(14, 2, 0);
        let debug = format!("{several:?}, {several:?}");
        let text = "INTERVAL '1 year 2 months 2 days'";
        assert_eq!(with_intervals(&debug), format!("{text}, {text}"));
    }

    #[test]
    fn literals_are_shown_as_in_sql() {
        let interval = |months, days, nanoseconds| {
            let interval = IntervalMonthDayNano::new(months, days, nanoseconds);
            literal_text(&ScalarValue::IntervalMonthDayNano(Some(interval)))
        };
        assert_eq!(interval(0, 0, 3_600_000_000_000), "INTERVAL '1 hour'");
        assert_eq!(
            interval(14, 2, -90_500_000_000),
            "INTERVAL '1 year 2 months 2 days -1 minute -30.5 seconds'"
        );
        assert_eq!(interval(0, 0, 0), "INTERVAL '0 seconds'");
        let day_time = IntervalDayTime::new(-1, 1500);
        let value = ScalarValue::IntervalDayTime(Some(day_time));
        assert_eq!(literal_text(&value), "INTERVAL '-1 day 1.5 seconds'");
        assert_eq!(literal_text(&ScalarValue::from("it's")), "'it''s'");
        assert_eq!(literal_text(&ScalarValue::Float64(Some(0.5))), "0.5");
        assert_eq!(literal_text(&ScalarValue::Int8(None)), "NULL");
        assert_eq!(
            literal_text(&ScalarValue::Date32(Some(1))),
            "DATE '1970-01-02'"
        );
        let timestamp = ScalarValue::TimestampSecond(Some(1), None);
        assert_eq!(literal_text(&timestamp), "TIMESTAMP '1970-01-01T00:00:01'");
        let values = arrow::array::PrimitiveArray::<Int64Type>::from_iter_values(0..100_000);
        let list = SingleRowListArrayBuilder::new(Arc::new(values)).build_list_scalar();
        assert_eq!(literal_text(&list), "[0, … 100000 values]");
        let long = ScalarValue::from("é".repeat(1000).as_str());
        assert_eq!(literal_text(&long).chars().count(), MAX_LITERAL + 3);
    }

    #[test]
    fn trees_have_single_bytes() {
        assert_eq!(tree_text("v > 'Übung…'"), "v > '?bung...'");
    }

    #[test]
    fn expressions_are_shown_as_in_sql() {
        let hour = IntervalMonthDayNano::new(0, 0, 3_600_000_000_000);
        let expr =
            col("p.ts").gt_eq(col("q.ts") - lit(ScalarValue::IntervalMonthDayNano(Some(hour))));
        assert_eq!(sql_text(&expr), "p.ts >= q.ts - INTERVAL '1 hour'");
        assert_eq!(sql_text(&(col("v") + lit(1)).gt(lit("x"))), "v + 1 > 'x'");
        let unnested = Expr::Column(Column::new_unqualified(
            "__unnest_placeholder(range(a,b),depth=1)",
        ));
        assert_eq!(sql_text(&unnested.lt(lit(1))), "unnest(range(a,b)) < 1");
    }
}
