use crate::naive::Sessions;
#[tokio::test]
async fn tmp() {
    let statements = [
        "CREATE TABLE q (id INT, a INT, b INT, s VARCHAR, f DOUBLE) AS VALUES (1, 1, 3, 'x', 1.5), (1, 1, 3, 'x', 1.5), \
         (2, NULL, 2, NULL, 'NaN'), (3, 9, NULL, 'none', NULL), (4, 2, 0, '', 0.0)",
        "CREATE TABLE p (id INT, k INT, v INT, t VARCHAR, g DOUBLE) AS VALUES (1, 1, 5, 'x', 1.5), (2, 1, 5, 'xy', 'NaN'), \
         (3, 2, 7, '', 0.0), (4, 3, NULL, NULL, NULL), (5, NULL, 1, 'x', 2.5), (6, 2, 7, 'z', 0.0), (7, 1, 9, 'x', 1.0)",
        "CREATE TABLE r (id INT, k INT, v INT, t VARCHAR, g DOUBLE) AS VALUES (1, 1, 5, 'x', 1.5), (2, 4, 1, 'y', 1.0)",
    ];
    let sessions = Sessions::new(&statements.map(String::from)).await.unwrap();
    let sql = std::env::var("SQL").unwrap_or_default();
    for line in sql.split(';') {
        match sessions.unnested(line).await {
            Ok(rows) => {
                for row in rows {
                    println!("{}", row.join(" | "))
                }
            }
            Err(e) => println!("{e}"),
        }
    }
}
