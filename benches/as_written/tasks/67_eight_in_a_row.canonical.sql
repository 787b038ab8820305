-- The highest of the eight readings that begin with every tenth.
SELECT a.id, max(b.v) AS high
FROM points a
JOIN points b ON b.s = a.s AND b.id BETWEEN a.id AND a.id + 7
WHERE a.id % 10 = 0
GROUP BY a.id
