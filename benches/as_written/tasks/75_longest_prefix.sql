-- The rate of each call, by the longest prefix of its number.
SELECT c.id, r.prefix, r.rate
FROM calls c
CROSS JOIN LATERAL (
  SELECT x.prefix, x.rate FROM rates x WHERE c.number LIKE x.prefix || '%' ORDER BY length(x.prefix) DESC LIMIT 1
) r
