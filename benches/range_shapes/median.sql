SELECT count(m), sum(m) FROM (SELECT (SELECT median(p.price) FROM quotes p WHERE p.pos BETWEEN q.a AND q.b) AS m FROM windows q)
