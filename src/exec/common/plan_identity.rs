//! The key of a plan as bytes, by which another process tells whether its plan returns the same rows.
//!
//! A function is known by its name alone, and another process may have another one of that name. So the plans that have
//! bytes are those without functions.

use std::collections::BTreeMap;

use arrow::datatypes::Schema;
use datafusion::common::config::ParquetEncryptionOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};

use crate::exec::common::plan_key::{FilePart, Layout, Operator, ParquetScan, PlanKey};
use crate::kept::identity::Identity;

impl PlanKey {
    /// Adds what the plan does to `identity`, and how its files are divided, which changes with a table, to `version`.
    /// `None` if another process can't tell either.
    pub(crate) fn add_to(&self, identity: &mut Identity, version: &mut Identity) -> Option<()> {
        identity.add_number(self.operators.len() as u64);
        for operator in &self.operators {
            match operator {
                Operator::Memory | Operator::Stated(..) => return None,
                Operator::Parquet(scan) => {
                    identity.add(b"scan");
                    add_scan(scan, identity)?;
                }
                Operator::Filter(predicate) => {
                    identity.add(b"filter");
                    add_expression(predicate, identity)?;
                }
                Operator::RoundRobin(partitions) => {
                    identity.add(b"round robin");
                    identity.add_number(*partitions as u64);
                }
                Operator::Gathered => identity.add(b"gathered"),
                Operator::Union(inputs) => {
                    identity.add(b"union");
                    identity.add_number(inputs.len() as u64);
                    for columns in inputs {
                        add_expressions(columns, identity)?;
                    }
                }
            }
        }
        for layout in &self.layouts {
            let Layout::Files(groups) = layout else {
                return None;
            };
            version.add_number(groups.len() as u64);
            for parts in groups {
                version.add_number(parts.len() as u64);
                for FilePart {
                    path,
                    range,
                    values,
                    // The version of the file has its size.
                    file_bytes: _,
                } in parts
                {
                    version.add_debug(&(path.as_ref(), range));
                    version.add_number(values.len() as u64);
                    for value in values {
                        version.add_literal(value)?;
                    }
                }
            }
        }
        Some(())
    }
}

fn add_scan(scan: &ParquetScan, identity: &mut Identity) -> Option<()> {
    let ParquetScan {
        table_schema,
        predicate,
        options,
        batch_rows,
    } = scan;
    if options.crypto != ParquetEncryptionOptions::default() {
        // What is encrypted should not be written as it is, nor the keys.
        return None;
    }
    add_schema(table_schema, identity);
    identity.add_number(predicate.iter().len() as u64);
    if let Some(predicate) = predicate {
        add_expression(predicate, identity)?;
    }
    identity.add_debug(options);
    identity.add_debug(batch_rows);
    Some(())
}

/// Adds names, types and metadata, which hash maps have in no order.
fn add_schema(schema: &Schema, identity: &mut Identity) {
    let of_schema: BTreeMap<_, _> = schema.metadata().iter().collect();
    identity.add_debug(&of_schema);
    identity.add_number(schema.fields().len() as u64);
    for field in schema.fields() {
        let metadata: BTreeMap<_, _> = field.metadata().iter().collect();
        identity.add_debug(&(field.name(), field.data_type(), field.is_nullable()));
        identity.add_debug(&metadata);
    }
}

/// Adds expressions that are repeatable. `None` if another process can't tell one of them.
pub(crate) fn add_expressions(
    expressions: &[PhysicalExprRef],
    identity: &mut Identity,
) -> Option<()> {
    identity.add_number(expressions.len() as u64);
    let mut expressions = expressions.iter();
    expressions.try_for_each(|expression| add_expression(expression, identity))
}

/// Adds an expression that is repeatable. `None` if another process can't tell it.
pub(crate) fn add_expression(expression: &PhysicalExprRef, identity: &mut Identity) -> Option<()> {
    // Its derived text tells it from others, except that texts in literals look like anything. Read from the left, each
    // of these is known from its bytes.
    identity.add_debug(expression);
    let mut are_known = true;
    let visited = expression.apply(|part| {
        if part.is::<ScalarFunctionExpr>() {
            are_known = false;
        } else if let Some(literal) = part.downcast_ref::<Literal>() {
            are_known &= identity.add_literal(literal.value()).is_some();
        }
        Ok(if are_known {
            TreeNodeRecursion::Continue
        } else {
            TreeNodeRecursion::Stop
        })
    });
    (visited.is_ok() && are_known).then_some(())
}
