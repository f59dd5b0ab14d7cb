"""Kueue: quota through a Workload of our own.

`workload` is what is asked, `admission` what is answered, `status` what is reported; `gang` keeps the contract with
them.
"""
