-- The spread of the readings within 30 numbers of every fifth reading.
SELECT a.id, max(b.v) - min(b.v) AS spread
FROM points a
JOIN points b ON b.s = a.s AND abs(b.id - a.id) <= 30
WHERE a.id % 5 = 0
GROUP BY a.id
