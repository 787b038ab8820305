-- The highest of the eight readings that begin with every tenth.
SELECT a.id, max(b.v) AS high
FROM points a
JOIN points b ON b.s = a.s AND b.id - a.id BETWEEN 0 AND 7
WHERE a.id % 10 = 0
GROUP BY a.id
