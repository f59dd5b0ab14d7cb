"""Can a step be made as the job asks: stages in an order, columns from one of them each, rows, and room for them?"""
