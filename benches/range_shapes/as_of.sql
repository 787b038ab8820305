SELECT count(v), sum(v) FROM (SELECT (SELECT p.price FROM quotes p WHERE p.sym = q.sym AND p.ts <= q.ts ORDER BY p.ts DESC LIMIT 1) AS v FROM trades q)
