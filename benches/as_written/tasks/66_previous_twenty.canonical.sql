-- The readings up to twenty numbers before those that are out of the ordinary.
SELECT a.id, b.id AS other
FROM points a
JOIN points b ON b.s = a.s AND b.id BETWEEN a.id - 20 AND a.id
WHERE a.id % 50 = 0
