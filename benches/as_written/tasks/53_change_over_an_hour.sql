-- How each bid differs from the first one of the hour before it.
SELECT sym, ts, bid - first_value(bid) OVER (PARTITION BY sym ORDER BY ts RANGE BETWEEN INTERVAL '1 hour' PRECEDING AND CURRENT ROW) AS change
FROM quotes
