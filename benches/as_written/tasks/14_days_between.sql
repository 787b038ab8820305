-- For each day the highest close of the 30 days after it.
SELECT e.sym, e.day, max(f.close) AS high
FROM prices e
JOIN prices f ON f.sym = e.sym AND f.day - e.day BETWEEN 0 AND 30
GROUP BY e.sym, e.day
