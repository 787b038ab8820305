-- For each day and symbol the first later day whose close is ten per cent higher.
SELECT p.sym, p.day, min(q.day) AS crossed
FROM prices p
JOIN prices q ON q.sym = p.sym AND q.day > p.day AND q.close >= 1.1 * p.close
GROUP BY p.sym, p.day
