//! Bytes that can't be read, plans that can't be written, and codecs that are missing.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::ScalarUDF;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
};
use datafusion_proto::physical_plan::{
    DefaultPhysicalExtensionCodec, DefaultPhysicalProtoConverter, PhysicalExtensionCodec,
    PhysicalProtoConverterExtension,
};
use datafusion_rmq::parts::RowPositionsExec;
use datafusion_rmq::physical_plan::{RangeJoinExec, RangeLookupExec};
use datafusion_rmq_proto::RmqCodec;

use crate::files::move_to_files;
use crate::support::builder;

async fn planned(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    let frame = ctx.sql(sql).await.expect(sql);
    frame.create_physical_plan().await.expect(sql)
}

async fn session(codec: &RmqCodec) -> SessionContext {
    let ctx = SessionContext::new_with_state(builder(codec).build());
    for sql in [
        "CREATE TABLE p AS SELECT value AS k FROM generate_series(1, 3) AS t(value)",
        "SET rmq.range_joins = 'always'",
    ] {
        ctx.sql(sql).await.expect(sql).collect().await.expect(sql);
    }
    ctx
}

const COUNT: &str = "SELECT (SELECT count(*) FROM p WHERE p.k BETWEEN q.k AND q.k + 9) FROM p AS q";

/// Each byte of an operator, changed, and each length. Bytes of DataFusion's own operators are its own affair: reading
/// them panics for some.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_operators_are_an_error() {
    let codec = RmqCodec::default();
    let ctx = session(&codec).await;
    let mut operators = vec![];
    for sql in [COUNT, "SELECT range_min('p.k', k, k + 2) FROM p"] {
        let plan = planned(&ctx, sql).await;
        let is_such =
            |plan: &dyn ExecutionPlan| is::<RangeJoinExec>(plan) || is::<RangeLookupExec>(plan);
        operators.push((sql, operator(&plan, &is_such).expect(sql)));
    }
    move_to_files(&ctx).await.expect("files");
    let nearest = "SELECT (SELECT p.k FROM p WHERE p.k = q.k AND p.k <= q.k ORDER BY p.k LIMIT 1) FROM p AS q";
    ctx.sql("SET rmq.join_mode = 'partitioned'")
        .await
        .expect("an option");
    let plan = planned(&ctx, nearest).await;
    for is_such in [is::<RangeJoinExec>, is::<RowPositionsExec>] {
        operators.push((nearest, operator(&plan, &is_such).expect(nearest)));
    }
    let converter = DefaultPhysicalProtoConverter {};
    for (sql, plan) in operators {
        let mut bytes = vec![];
        let written = codec.try_encode(Arc::clone(&plan), &mut bytes, &converter);
        written.expect(sql);
        let inputs: Vec<_> = plan.children().into_iter().cloned().collect();
        let context = ctx.task_ctx();
        let read = |bytes: &[u8]| codec.try_decode(bytes, &inputs, &context, &converter);
        read(&bytes).expect(sql);
        let mut newer = bytes.clone();
        newer[3] += 1;
        let (version, newer) = (newer[3], error(read(&newer)));
        let told = format!("is in version {version} of the format");
        assert!(newer.contains(&told), "{newer}");
        for length in 0..bytes.len() {
            error(read(&bytes[..length]));
        }
        for i in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[i] ^= 1 << bit;
                error(read(&changed));
            }
        }
    }
}

fn is<T: ExecutionPlan>(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<T>()
}

/// The first such operator of a plan.
fn operator(
    plan: &Arc<dyn ExecutionPlan>,
    is_such: &dyn Fn(&dyn ExecutionPlan) -> bool,
) -> Option<Arc<dyn ExecutionPlan>> {
    if is_such(plan.as_ref()) {
        return Some(Arc::clone(plan));
    }
    let mut children = plan.children().into_iter();
    children.find_map(|child| operator(child, is_such))
}

fn error(result: Result<impl Sized>) -> String {
    result.err().expect("an error").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_that_share_their_searched_side_are_not_written() {
    let codec = RmqCodec::default();
    let ctx = session(&codec).await;
    ctx.sql("SET rmq.join_mode = 'shared'")
        .await
        .expect("an option");
    let plan = planned(&ctx, COUNT).await;
    let error = error(physical_plan_to_bytes_with_extension_codec(plan, &codec));
    assert!(error.contains("shares its searched side"), "{error}");
    assert!(error.contains("SET rmq.join_mode = 'collected'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_need_the_codec() {
    let (codec, none) = (RmqCodec::default(), DefaultPhysicalExtensionCodec {});
    let ctx = session(&codec).await;
    let plan = planned(&ctx, COUNT).await;
    error(physical_plan_to_bytes_with_extension_codec(
        Arc::clone(&plan),
        &none,
    ));
    let bytes = physical_plan_to_bytes_with_extension_codec(plan, &codec).expect(COUNT);
    error(physical_plan_from_bytes_with_extension_codec(
        &bytes,
        &ctx.task_ctx(),
        &none,
    ));
    let error = error(codec.try_decode(
        b"another codec's bytes",
        &[],
        &ctx.task_ctx(),
        &DefaultPhysicalProtoConverter {},
    ));
    assert!(error.contains("the sender has another codec"), "{error}");
}

/// A table in memory is sent with the plan up to a size.
#[tokio::test(flavor = "multi_thread")]
async fn large_tables_in_memory_are_not_sent() {
    let codec = RmqCodec::default();
    let ctx = session(&codec).await;
    let table =
        "CREATE TABLE large AS SELECT value AS v FROM generate_series(1, 3000000) AS t(value)";
    ctx.sql(table)
        .await
        .expect(table)
        .collect()
        .await
        .expect(table);
    let plan = planned(&ctx, "SELECT range_min('large.v', k, k + 2) FROM p").await;
    let error = error(physical_plan_to_bytes_with_extension_codec(plan, &codec));
    assert!(error.contains("the rows of large are in memory"), "{error}");
}

/// The codec of a user, for a function of his own.
#[derive(Debug)]
struct OfUser;

impl PhysicalExtensionCodec for OfUser {
    fn try_decode(
        &self,
        _buf: &[u8],
        _inputs: &[Arc<dyn ExecutionPlan>],
        _ctx: &TaskContext,
        _converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        unreachable!("there is no operator")
    }

    fn try_encode(
        &self,
        _node: Arc<dyn ExecutionPlan>,
        _buf: &mut Vec<u8>,
        _converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        unreachable!("there is no operator")
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        assert_eq!((name, buf), ("plus", &b"9"[..]));
        Ok(Arc::new(plus(9)))
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        if node.name() == "plus" {
            buf.push(b'9');
        }
        Ok(())
    }
}

fn plus(n: i64) -> ScalarUDF {
    use datafusion::arrow::array::{AsArray, Int64Array};
    use datafusion::arrow::datatypes::{DataType, Int64Type};
    use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
    let add = move |args: &[ColumnarValue]| {
        let args = ColumnarValue::values_to_arrays(args)?;
        let sums: Int64Array = args[0].as_primitive::<Int64Type>().unary(|v| v + n);
        Ok(ColumnarValue::Array(Arc::new(sums)))
    };
    let long = DataType::Int64;
    create_udf(
        "plus",
        vec![long.clone()],
        long,
        Volatility::Immutable,
        Arc::new(add),
    )
}

/// Within operators of this crate, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_codec_of_a_user_writes_his_functions() {
    let codec = RmqCodec::default().with_others(Arc::new(OfUser));
    let ctx = session(&codec).await;
    ctx.register_udf(plus(9));
    let sql = "SELECT plus(q.k), (SELECT count(*) FROM p WHERE p.k BETWEEN q.k AND plus(q.k)) FROM p AS q";
    let plan = planned(&ctx, sql).await;
    let bytes = physical_plan_to_bytes_with_extension_codec(plan, &codec).expect(sql);
    // Not in the registry.
    let other = SessionContext::new_with_state(builder(&codec).build());
    let plan = physical_plan_from_bytes_with_extension_codec(&bytes, &other.task_ctx(), &codec);
    let rows = datafusion::physical_plan::collect(plan.expect(sql), other.task_ctx()).await;
    let rows = datafusion::arrow::util::pretty::pretty_format_batches(&rows.expect(sql));
    let rows = rows.expect("text").to_string();
    for row in ["| 10        | 3 ", "| 11        | 2 ", "| 12        | 1 "] {
        assert!(rows.contains(row), "{rows}");
    }
}
