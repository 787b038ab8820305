//! Statements about indexes that DataFusion's SQL planner refuses or reads only in part: clauses of CREATE INDEX, and
//! DROP INDEX.

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::ast::{
    CreateIndex, Ident, ObjectName, ObjectNamePart, ObjectType, Statement,
};

/// Checks a statement about indexes. DROP INDEX becomes DROP TABLE of the same names in the schema `index_schema`.
///
/// # Errors
/// A planning error for a clause of CREATE INDEX that DataFusion's SQL planner would drop, and for several names or a
/// qualified name of DROP INDEX.
pub(crate) fn prepare_index_statement(statement: &mut Statement, index_schema: &str) -> Result<()> {
    match statement {
        Statement::CreateIndex(create) => check_clauses(create),
        Statement::Drop {
            object_type, names, ..
        } if *object_type == ObjectType::Index => {
            for name in names {
                let [part] = name.0.as_slice() else {
                    return plan_err!(
                        "DROP INDEX: the name {name} is qualified, but all indexes are in the schema {index_schema}"
                    );
                };
                let schema = ObjectNamePart::Identifier(Ident::with_quote('"', index_schema));
                *name = ObjectName(vec![schema, part.clone()]);
            }
            *object_type = ObjectType::Table;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Refuses clauses that would be dropped.
fn check_clauses(create: &CreateIndex) -> Result<()> {
    for column in &create.columns {
        if let Some(class) = &column.operator_class {
            return plan_err!(
                "CREATE INDEX: {class} after the column {} is read as an operator class, which rmq has none of; is a comma missing?",
                column.column
            );
        }
    }
    let clauses = [
        ("CONCURRENTLY", create.concurrently),
        ("INCLUDE", !create.include.is_empty()),
        ("NULLS DISTINCT", create.nulls_distinct.is_some()),
        ("WITH", !create.with.is_empty()),
        ("WHERE", create.predicate.is_some()),
        (
            "an option after the columns",
            !create.index_options.is_empty() || !create.alter_options.is_empty(),
        ),
    ];
    match clauses.iter().find(|(_, is_given)| *is_given) {
        Some((clause, _)) => {
            plan_err!("CREATE INDEX: rmq has no {clause}, which would be ignored; leave it out")
        }
        None => Ok(()),
    }
}
