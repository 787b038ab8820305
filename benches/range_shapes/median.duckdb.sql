WITH w AS (SELECT a AS o, NULL::DOUBLE AS price, TRUE AS is_window FROM windows UNION ALL SELECT pos, price, FALSE FROM quotes)
SELECT count(m), sum(m) FROM (SELECT is_window, median(price) OVER (ORDER BY o RANGE BETWEEN CURRENT ROW AND 199 FOLLOWING) AS m FROM w QUALIFY is_window)
