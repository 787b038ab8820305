-- For each day the highest close of the 30 days after it.
SELECT e.sym, e.day, max(f.close) AS high
FROM prices e
JOIN prices f ON f.sym = e.sym AND f.day BETWEEN e.day AND e.day + INTERVAL '30 days'
GROUP BY e.sym, e.day
