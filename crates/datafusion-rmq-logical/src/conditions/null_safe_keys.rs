//! Equality keys of which one that is NULL equals another, as pairs of keys of which none is NULL.
//!
//! ```text
//!   q.sym IS NOT DISTINCT FROM p.sym        CASE WHEN q.sym IS NOT NULL THEN q.sym ELSE '' END
//!                                         = CASE WHEN p.sym IS NOT NULL THEN p.sym ELSE '' END,
//!                                           (q.sym IS NULL) = (p.sym IS NULL)
//! ```
//!
//! Where one of them is NOT NULL, it is an equality of both.

use datafusion_common::{Result, ScalarValue};

use crate::conditions::condition::Operand;
use rmq_arrow::sorted::groups::Groups;

/// The pairs of keys that are equal where `ours`, of the schema of the probe side, is not distinct from `theirs`, of
/// that of the build side. `None` for types that rows can't be grouped by.
pub fn null_safe_keys<E: Operand>(
    (ours, probe): (&E, &E::Schema),
    (theirs, build): (&E, &E::Schema),
) -> Result<Option<Vec<(E, E)>>> {
    let data_type = ours.data_type(probe)?;
    if data_type != theirs.data_type(build)? || !Groups::supports(&data_type) {
        return Ok(None);
    }
    let keys = (ours.clone(), theirs.clone());
    if !ours.may_be_null(probe)? || !theirs.may_be_null(build)? {
        return Ok(Some(vec![keys]));
    }
    let Ok(value) = ScalarValue::new_default(&data_type) else {
        return Ok(None);
    };
    let values = (keys.0.or_value(value.clone())?, keys.1.or_value(value)?);
    let are_null = (ours.clone().null_check(), theirs.clone().null_check());
    Ok(Some(vec![values, are_null]))
}
